package redislock

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Client is the part of a go-redis client that this package uses. *redis.Client
// implements it, including one made by redis.NewFailoverClient, and so does
// *redis.ClusterClient. The client belongs to the caller: this package never
// closes, reconfigures or copies it.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

func isNil(client Client) bool {
	if client == nil {
		return true
	}
	v := reflect.ValueOf(client)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// sharded is what a ring can do, and a client of one server cannot.
type sharded interface {
	ForEachShard(ctx context.Context, fn func(ctx context.Context, shard *redis.Client) error) error
}

var (
	clientType   = reflect.TypeFor[Client]()
	topologyType = reflect.TypeFor[wire.Topology]()
	shardedType  = reflect.TypeFor[sharded]()
)

// deployment is what a client stands for.
type deployment struct {
	cluster wire.Topology // nil: no cluster, as far as can be seen
	single  bool          // it is known to be one server
}

// engine is how requests travel to it. A wrapper of the client may have methods
// of its own: requests go through the client all the same.
func (d deployment) engine(client Client, o *options) wire.Engine {
	return wire.NewEngine(client, wire.Config{
		Cluster: d.cluster, Single: d.single,
		Replicas: o.replicas, Timeout: o.replicaTimeout, Missing: ErrNotReplicated,
		Log: o.reports,
	})
}

// deploymentOf hangs on what the client can do, not on its type: a struct that
// embeds a client keeps its methods. One that embeds an interface
// (redis.UniversalClient) has only those of the interface, so what the
// interface holds is looked at, at any depth.
//
// It returns an error for a client that cannot hold locks, and for one that
// holds a client of a cluster, but does not let anybody get at its methods.
// What is behind methods and functions cannot be seen, and counts as one
// server, whose client may do what that of a cluster does.
func deploymentOf(client Client) (deployment, error) {
	return look(reflect.ValueOf(client), 0)
}

// deepest is how many wrappers around one another are looked into. More are a
// cycle.
const deepest = 16

func look(v reflect.Value, depth int) (d deployment, err error) {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	switch {
	case !v.IsValid() || depth == deepest:
		return d, nil
	case v.Type().Implements(topologyType):
		if !v.CanInterface() {
			return d, &hiddenError{v.Type()}
		}
		d.cluster = v.Interface().(wire.Topology)
		return d, nil
	case v.Type().Implements(shardedType):
		return d, errRing
	case v.Type() == reflect.TypeFor[*redis.Client]():
		d.single = true
		return d, nil
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return d, nil
	}
	return lookInto(v, depth)
}

// lookInto looks at the client that a struct wraps: what it embeds, or else a
// client among its fields. With several of them nobody can tell which one it
// is, unless all are of the same kind.
func lookInto(v reflect.Value, depth int) (d deployment, err error) {
	var embedded, named []reflect.Value
	for i := range v.NumField() {
		switch field := v.Field(i); {
		case !holdsClient(field):
		case v.Type().Field(i).Anonymous:
			embedded = append(embedded, field)
		default:
			named = append(named, field)
		}
	}
	if len(embedded) == 1 {
		return look(embedded[0], depth+1)
	}
	candidates := append(embedded, named...)
	d.single = len(candidates) > 0
	usable := false // there is one to which requests may go
	for _, field := range candidates {
		found, wrong := look(field, depth+1)
		switch {
		case wrong != nil:
			err = wrong
		case found.cluster != nil:
			err = &hiddenError{reflect.TypeOf(found.cluster)}
		default:
			usable = true
		}
		d.single = d.single && found.single
	}
	if usable {
		err = nil
	}
	return d, err
}

func holdsClient(field reflect.Value) bool {
	if field.Kind() == reflect.Interface {
		field = field.Elem()
	}
	if !field.IsValid() || field.Kind() == reflect.Pointer && field.IsNil() {
		return false
	}
	t := field.Type()
	return t.Implements(clientType) || t.Kind() == reflect.Struct && reflect.PointerTo(t).Implements(clientType)
}

var errRing = errors.New("a *redis.Ring, which moves keys when a shard is marked down, and would grant a lock twice")

// hiddenError says that a client holds a client of a cluster whose methods it
// does not show.
type hiddenError struct{ client reflect.Type }

func (e *hiddenError) Error() string {
	return fmt.Sprintf("a wrapper of a %s, but does not have its methods ForEachMaster, MasterForKey and ReloadState, "+
		"which locks on a cluster need: embed the client or add them", e.client)
}
