package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath string
	Dir        string
	Export     string
	GoFiles    []string
	Imports    []string
	Module     *struct {
		Path string
		Main bool
	}
}

// module is this module: its packages and the export data of all that they
// import, as the go command has compiled it. The data comes from the go command
// because the tool that finds packages for go/types is not in the standard
// library.
type module struct {
	path     string
	packages map[string]listed // by folder in the module, "." for the root
	exports  map[string]string // files of export data, by import path
}

func loadModule() (*module, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Imports,Module", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	m := &module{packages: make(map[string]listed), exports: make(map[string]string)}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return m, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		m.exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			m.path = p.Module.Path
			m.packages[m.folder(p.ImportPath)] = p
		}
	}
}

// folder is the folder of a package of this module.
func (m *module) folder(importPath string) string {
	if importPath == m.path {
		return "."
	}
	return strings.TrimPrefix(importPath, m.path+"/")
}

// checkImports prints what the packages in layers import of each other, and
// returns what they must not.
func (m *module) checkImports() (broken []string) {
	var folders []string
	for folder := range layers {
		folders = append(folders, folder)
	}
	slices.Sort(folders)
	for _, folder := range folders {
		p, found := m.packages[folder]
		if !found {
			broken = append(broken, folder+": there is no such package")
			continue
		}
		var imports []string
		for _, path := range p.Imports {
			if !strings.HasPrefix(path, m.path) {
				continue
			}
			imports = append(imports, m.folder(path))
			if !slices.Contains(layers[folder], m.folder(path)) {
				broken = append(broken, fmt.Sprintf("%s must not import %s", folder, m.folder(path)))
			}
		}
		fmt.Printf("%-15s imports of this module: %s\n", folder, orNone(imports))
	}
	return broken
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, " ")
}

// reference says that a file names something that another one declares.
type reference struct {
	from, to string
	name     string
}

// references are those between the files of one package, without its tests.
func (m *module) references(folder string) ([]reference, error) {
	p := m.packages[folder]
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	lookup := func(path string) (io.ReadCloser, error) {
		file := m.exports[path]
		if file == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(file)
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection)}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	pkg, err := conf.Check(p.ImportPath, fset, files, info)
	if err != nil {
		return nil, err
	}
	return collect(fset, pkg, info, p.GoFiles), nil
}

func collect(fset *token.FileSet, pkg *types.Package, info *types.Info, files []string) []reference {
	seen := make(map[reference]bool)
	for _, name := range files {
		seen[reference{from: name, to: name}] = true // a file without references is one all the same
	}
	for ident, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() || isLocal(pkg, object) {
			continue
		}
		from := filepath.Base(fset.Position(ident.Pos()).Filename)
		to := filepath.Base(fset.Position(object.Pos()).Filename)
		seen[reference{from, to, object.Name()}] = true
	}
	var refs []reference
	for r := range seen {
		refs = append(refs, r)
	}
	return refs
}

// isLocal reports whether an object lives inside a function, and so in its
// file.
func isLocal(pkg *types.Package, object types.Object) bool {
	switch o := object.(type) {
	case *types.PkgName:
		return true
	case *types.Var:
		return !o.IsField() && o.Parent() != pkg.Scope()
	case *types.Func:
		return false
	}
	return object.Parent() != pkg.Scope()
}
