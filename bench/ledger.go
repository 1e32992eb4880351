package main

import (
	"os"
	"sync/atomic"
	"unsafe"
)

// ledger is memory that all contenders for a name share, also those of other
// processes. They write into it while they hold the lock, so it knows without
// comparing clocks who came after whom, and whether two were inside at once. A
// file that is created and removed would tell as much, but takes longer than the
// hand-over that is measured.
//
// Its words are atomic, since it must work just when the lock does not.
type ledger struct{ words []uint64 }

const (
	wordOpen       = iota // 1 while sections count
	wordInside            // who is inside, 0 for nobody
	wordLast              // who was inside last
	wordSections          // how many times somebody was inside
	wordHandOvers         // sections whose owner was not that of the section before
	wordViolations        // two inside at once
	wordFirstCount        // from here on: sections of each contender
)

// mapLedger opens the ledger in the file path, which it creates for so many
// contenders if need be.
func mapLedger(path string, contenders int) (*ledger, error) {
	size := (wordFirstCount + contenders) * int(unsafe.Sizeof(uint64(0)))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		return nil, err
	}
	memory, err := mapShared(file, size)
	if err != nil {
		return nil, err
	}
	return &ledger{unsafe.Slice((*uint64)(unsafe.Pointer(&memory[0])), wordFirstCount+contenders)}, nil
}

// unmap ends the ledger, which nobody may use any more. A worker leaves that to
// its exit.
func (l *ledger) unmap() error {
	size := len(l.words) * int(unsafe.Sizeof(uint64(0)))
	return unmapShared(unsafe.Slice((*byte)(unsafe.Pointer(&l.words[0])), size))
}

func (l *ledger) load(word int) uint64 { return atomic.LoadUint64(&l.words[word]) }

func (l *ledger) open()  { atomic.StoreUint64(&l.words[wordOpen], 1) }
func (l *ledger) close() { atomic.StoreUint64(&l.words[wordOpen], 0) }

// enter is the first thing that the contender with this number does inside.
func (l *ledger) enter(contender int) {
	id := uint64(contender) + 1
	if !atomic.CompareAndSwapUint64(&l.words[wordInside], 0, id) {
		l.violate()
	}
	if last := atomic.SwapUint64(&l.words[wordLast], id); last != id && l.load(wordOpen) == 1 {
		atomic.AddUint64(&l.words[wordHandOvers], 1)
	}
	l.count(contender)
}

// leave is the last thing that the contender does inside.
func (l *ledger) leave(contender int) {
	if !atomic.CompareAndSwapUint64(&l.words[wordInside], uint64(contender)+1, 0) {
		l.violate()
	}
}

// violate notes that two were inside at once.
func (l *ledger) violate() { atomic.AddUint64(&l.words[wordViolations], 1) }

// count counts a section that excludes nobody else.
func (l *ledger) count(contender int) {
	if l.load(wordOpen) == 1 {
		atomic.AddUint64(&l.words[wordSections], 1)
		atomic.AddUint64(&l.words[wordFirstCount+contender], 1)
	}
}

// counts returns the sections of each goroutine of each process.
func (l *ledger) counts(processes, goroutines int) [][]float64 {
	out := make([][]float64, processes)
	for p := range out {
		for g := range goroutines {
			out[p] = append(out[p], float64(l.load(wordFirstCount+p*goroutines+g)))
		}
	}
	return out
}
