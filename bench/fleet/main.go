// Command fleet plans many PostgreSQL clusters, over which namespaces are spread, and simulates what happens to them. See
// docs/scale.md.
//
//	go run ./bench/fleet
//	go run ./bench/fleet -sessions 50000 -nodes 2e7 -server-us 200 -core-month 45
//
// The figures that it plans with are flags. Their defaults are measured by
//
//	go test ./bench -run '^$' -bench Cluster -benchtime 400x -timeout 30m
//	go test ./bench -run '^$' -bench Backup
//
// on two cores, except for prices, which are round numbers to be replaced.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine/open"
)

// A plan is what is asked for, and the figures that it is planned with.
type plan struct {
	sessions   float64       // that are busy
	every      time.Duration // between two turns of a busy session
	nodes      float64       // that are kept
	turnNodes  float64       // nodes of a turn
	namespaces int
	skew       float64 // exponent of the sizes of namespaces, by Zipf's law
	cores      float64 // of a server
	busy       float64 // share of a server's cores that is planned to be busy
	standbys   float64 // of each server
	serverUS   float64 // of a server's processor for a commit
	hostUS     float64 // of a host's processor for a commit
	nodeBytes  float64 // of a server's disk for a node, index included
	moveMBs    float64 // at which a namespace moves
	pauseMS    float64 // that a move makes commits wait
	restore    float64 // turns that one process restores in a second
	restorers  float64 // processes that restore at once
	failover   time.Duration
	backup     time.Duration // between two runs of a backup
	coreMonth  float64       // US dollars
	diskMonth  float64       // for a GB
	coldMonth  float64       // for a GB of an object store
	seed       uint64
}

func main() {
	p := defaults()
	p.flags(flag.CommandLine)
	flag.Parse()
	if err := p.run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// defaults returns a plan with the defaults of all flags.
func defaults() *plan {
	p := &plan{}
	p.flags(flag.NewFlagSet("fleet", flag.ContinueOnError))
	return p
}

// flags sets p to the defaults, and adds its flags to f.
func (p *plan) flags(f *flag.FlagSet) {
	f.Float64Var(&p.sessions, "sessions", 1e6, "busy sessions")
	f.DurationVar(&p.every, "every", 5*time.Second, "between two turns of a busy session")
	f.Float64Var(&p.nodes, "nodes", 1e9, "nodes that are kept")
	f.Float64Var(&p.turnNodes, "turn-nodes", 4, "nodes of a turn")
	f.IntVar(&p.namespaces, "namespaces", 20_000, "namespaces")
	f.Float64Var(&p.skew, "skew", 0.8, "exponent of Zipf's law for the sizes of namespaces; 0: all are as large")
	f.Float64Var(&p.cores, "cores", 8, "cores of a server")
	f.Float64Var(&p.busy, "busy", 0.4, "share of a server's cores that is to be busy")
	f.Float64Var(&p.standbys, "standbys", 1, "synchronous standbys of a server, as large as it")
	f.Float64Var(&p.serverUS, "server-us", 125, "microseconds of a server's processor for a commit")
	f.Float64Var(&p.hostUS, "host-us", 65, "microseconds of a host's processor for a commit")
	f.Float64Var(&p.nodeBytes, "node-bytes", 235, "bytes of a server's disk for a node")
	f.Float64Var(&p.moveMBs, "move-mbs", 17, "MB/s at which a namespace moves")
	f.Float64Var(&p.pauseMS, "pause-ms", 3.4, "milliseconds that a move makes commits wait")
	f.Float64Var(&p.restore, "restore", 2000, "turns that one process restores in a second")
	f.Float64Var(&p.restorers, "restorers", 16, "processes that restore at once, each its namespaces")
	f.DurationVar(&p.failover, "failover", 30*time.Second, "until a standby takes over")
	f.DurationVar(&p.backup, "backup", 5*time.Minute, "between two runs of a backup")
	f.Float64Var(&p.coreMonth, "core-month", 30, "US dollars a month for a core, with its memory")
	f.Float64Var(&p.diskMonth, "disk-month", 0.12, "US dollars a month for a GB of disk")
	f.Float64Var(&p.coldMonth, "cold-month", 0.02, "US dollars a month for a GB of an object store")
	f.Uint64Var(&p.seed, "seed", 1, "of the simulation")
}

// A space is a namespace of the simulation.
type space struct {
	name  string
	share float64 // of all commits, and of all bytes
}

// A fleet is where the namespaces are.
type fleet struct {
	names  []string // of the clusters
	spaces []space
	at     []string // the cluster of each namespace
}

// run prints the plan.
func (p *plan) run(w io.Writer) error {
	if p.sessions <= 0 || p.every <= 0 || p.nodes <= 0 || p.namespaces <= 0 || p.cores <= 0 || p.busy <= 0 || p.serverUS <= 0 || p.moveMBs <= 0 || p.restore <= 0 || p.restorers <= 0 {
		return fmt.Errorf("sessions, every, nodes, namespaces, cores, busy, server-us, move-mbs, restore and restorers are above zero")
	}
	commits := p.sessions / p.every.Seconds()
	serverCores, hostCores := commits*p.serverUS/1e6, commits*p.hostUS/1e6
	clusters := int(math.Ceil(serverCores / (p.cores * p.busy)))
	bytes := p.nodes * p.nodeBytes
	fmt.Fprintf(w, "load        %.0f commits/s; %.1f cores of servers and %.1f of hosts are busy\n", commits, serverCores, hostCores)
	fmt.Fprintf(w, "clusters    %d of %.0f cores, %.0f %% busy, each with %.0f standbys; %.0f commits/s and %.0f GB each\n",
		clusters, p.cores, 100*serverCores/(p.cores*float64(clusters)), p.standbys, commits/float64(clusters), bytes/1e9/float64(clusters))
	fmt.Fprintf(w, "a namespace takes up to %.0f commits/s, %.0f busy sessions, because it is in one cluster\n", p.cores*p.busy*1e6/p.serverUS, p.cores*p.busy*1e6/p.serverUS*p.every.Seconds())
	f := p.hashed(clusters)
	fmt.Fprintf(w, "\nhashing     %s\n", f.spread())
	moves, share := f.level(1.1)
	fmt.Fprintf(w, "levelling   %s, by %s\n", f.spread(), p.cost(moves, share*bytes))
	worst, mean := f.lost()
	fmt.Fprintf(w, "\na lost cluster has %.1f %% of the sessions (%.1f %% at worst)\n", 100*mean, 100*worst)
	if p.standbys > 0 {
		fmt.Fprintf(w, "  its standby, which is synchronous, takes over after %v: nothing is lost, %.0f commits wait\n", p.failover, mean*commits*p.failover.Seconds())
	}
	turns := worst * p.nodes / p.turnNodes
	fmt.Fprintf(w, "  without one, %.0f processes restore %.0f million turns in %v; up to %.0f commits of the last %v are lost\n",
		p.restorers, turns/1e6, hours(turns/p.restore/p.restorers), worst*commits*p.backup.Seconds(), p.backup)
	n := float64(len(f.names))
	cores, disk, cold := n*p.cores*(1+p.standbys)*p.coreMonth, 2*bytes/1e9*(1+p.standbys)*p.diskMonth, bytes/1e9*p.coldMonth
	hosts := math.Ceil(hostCores/p.busy) * p.coreMonth
	fmt.Fprintf(w, "\na month     $%.0f: $%.0f servers, $%.0f disks with as much room again, $%.0f backups, $%.0f hosts' cores\n", cores+disk+cold+hosts, cores, disk, cold, hosts)
	fmt.Fprintf(w, "            $%.4f for a busy session, $%.2f for a million nodes that are kept\n", (cores+hosts)/p.sessions, (disk+cold)/p.nodes*1e6)
	f.names = append(f.names, fmt.Sprint("cluster ", clusters+1))
	moves, share = f.level(1.1)
	fmt.Fprintf(w, "\none more    %s, by %s\n", f.spread(), p.cost(moves, share*bytes))
	return nil
}

// hashed returns a fleet with so many clusters, which has each namespace in the cluster that hashing prefers for it.
func (p *plan) hashed(clusters int) *fleet {
	f := &fleet{}
	for i := range clusters {
		f.names = append(f.names, fmt.Sprint("cluster ", i+1))
	}
	sum := 0.0
	for i := range p.namespaces {
		share := math.Pow(float64(i+1), -p.skew)
		f.spaces = append(f.spaces, space{share: share})
		sum += share
	}
	rnd := rand.New(rand.NewPCG(p.seed, 0))
	for i := range f.spaces {
		f.spaces[i].share /= sum
		f.spaces[i].name = fmt.Sprintf("team %x", rnd.Uint64())
		names := slices.Clone(f.names)
		open.Prefer(names, f.spaces[i].name)
		f.at = append(f.at, names[0])
	}
	return f
}

// loads returns the share of each cluster.
func (f *fleet) loads() map[string]float64 {
	out := map[string]float64{}
	for _, name := range f.names {
		out[name] = 0
	}
	for i, s := range f.spaces {
		out[f.at[i]] += s.share
	}
	return out
}

// spread says how evenly the clusters are loaded.
func (f *fleet) spread() string {
	least, most := math.Inf(1), 0.0
	for _, l := range f.loads() {
		least, most = min(least, l), max(most, l)
	}
	n := float64(len(f.names))
	return fmt.Sprintf("%.2f to %.2f times the mean on a cluster", least*n, most*n)
}

// level moves namespaces to the cluster with the least load, from the one with the most that has one that fits, the largest
// first, as long as a cluster has more than so many times the mean, or less than the mean by as much. It returns how many
// have moved, and their share of all.
func (f *fleet) level(most float64) (moves int, share float64) {
	loads := f.loads()
	mean := 1 / float64(len(f.names))
	byLoad := slices.Clone(f.names)
	for {
		slices.SortFunc(byLoad, func(a, b string) int { return cmp.Compare(loads[b], loads[a]) })
		to := byLoad[len(byLoad)-1]
		if loads[byLoad[0]] <= most*mean && loads[to] >= (2-most)*mean {
			return moves, share
		}
		best := -1
		for _, from := range byLoad {
			if best = f.fitting(from, (loads[from]-loads[to])/2); best >= 0 || loads[from] <= mean {
				break
			}
		}
		if best < 0 {
			return moves, share
		}
		s := f.spaces[best].share
		loads[f.at[best]] -= s
		loads[to] += s
		f.at[best] = to
		moves, share = moves+1, share+s
	}
}

// fitting returns the largest namespace of a cluster with at most this share, or -1. With a share of half of the
// difference of two clusters, it does not make the other one the larger of both.
func (f *fleet) fitting(cluster string, most float64) int {
	best := -1
	for i, s := range f.spaces {
		if f.at[i] == cluster && s.share <= most && s.share > 1e-9 && (best < 0 || s.share > f.spaces[best].share) {
			best = i
		}
	}
	return best
}

// cost says what moves take.
func (p *plan) cost(moves int, bytes float64) string {
	return fmt.Sprintf("%d moves of %.0f GB in %v; each makes its commits wait %v", moves, bytes/1e9, hours(bytes/1e6/p.moveMBs), time.Duration(p.pauseMS*float64(time.Millisecond)))
}

// lost returns the largest and the mean share of a cluster.
func (f *fleet) lost() (worst, mean float64) {
	for _, l := range f.loads() {
		worst = max(worst, l)
	}
	return worst, 1 / float64(len(f.names))
}

// hours returns seconds as a duration to read.
func hours(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(time.Minute)
}
