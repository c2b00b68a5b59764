package badger

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// recover opens the files that the manifest lists. It writes and removes nothing before it
// has found all of them whole.
func (e *Engine) recover() (err error) {
	names, err := e.files.list()
	if err != nil {
		return err
	}
	m, err := readManifest(e.files)
	if errors.Is(err, fs.ErrNotExist) {
		if err := e.mayBeNew(names); err != nil {
			return err
		}
		if e.opts.ReadOnly {
			return fmt.Errorf("there is no store: %w", fs.ErrNotExist)
		}
		m, err = e.create(names)
	}
	if err != nil {
		return err
	}
	e.content.flushed = m.flushed
	e.nextNumber = m.log + 1
	for _, n := range names {
		for _, suffix := range []string{logSuffix, tableSuffix} {
			if n, ok := numbered(n, suffix); ok {
				e.nextNumber = max(e.nextNumber, n+1)
			}
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.content.close())
		}
	}()
	if e.content.runs, err = openRuns(e.files, m.runs); err != nil {
		return err
	}
	logs, err := e.replay(m.log)
	if err == nil {
		err = e.nothingBehind(names)
	}
	if err != nil || e.opts.ReadOnly {
		return err
	}
	// All files are whole. From here on recover changes the disk.
	clean := len(logs) == 1 && logs[0].closed && logs[0].torn == 0
	for _, c := range logs {
		if c.closed && c.torn == 0 {
			continue
		}
		if err := c.renew(); err != nil {
			return fmt.Errorf("log %s: %w", logName(c.number), err)
		}
	}
	return e.tidy(clean, e.stale(names))
}

// mayBeNew refuses a directory that may hold a store whose manifest is missing. The
// manifest of a new store is its last file to be created. Until then the store has one
// log, without a group.
func (e *Engine) mayBeNew(names []string) error {
	for _, n := range names {
		if _, ok := numbered(n, tableSuffix); ok {
			return fmt.Errorf("%w: %s, but no %s", engine.ErrCorrupt, n, manifestName)
		}
		if strings.HasPrefix(n, "gen-") {
			return fmt.Errorf("%w: %s is of a build before the first release, which this one does not read", engine.ErrCorrupt, n)
		}
		if number, ok := numbered(n, logSuffix); ok {
			used, err := hasGroups(e.files, number)
			if err != nil {
				return err
			}
			if used || number != firstLog {
				return fmt.Errorf("%w: %s, but no %s", engine.ErrCorrupt, n, manifestName)
			}
		}
	}
	return nil
}

// firstLog is the number of a new store's log.
const firstLog = 1

// create makes an empty store.
func (e *Engine) create(names []string) (*manifest, error) {
	if err := removeAll(e.files, []string{logName(firstLog)}); err != nil {
		return nil, err
	}
	l, err := createLog(e.files, firstLog, e.logSize, nil)
	if err != nil {
		return nil, err
	}
	m := &manifest{log: firstLog}
	_, err = m.write(e.files)
	return m, errors.Join(err, l.f.Close())
}

// replay reads the log with a number and the logs that follow it into memtables, and
// returns them.
func (e *Engine) replay(number uint64) (logs []*logContent, err error) {
	e.written = e.content.flushed
	for {
		c, err := readLog(e.files, number, e.written)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: log %s is missing", engine.ErrCorrupt, logName(number))
		}
		if err != nil {
			return nil, err
		}
		mt := newMemtable(c.log, e.written, nil)
		e.content.memtables = append(e.content.memtables, mt)
		for _, g := range c.groups {
			full := false
			err := operations(g.body, func(op operation) {
				if full = full || !mt.fits(cost(op.key, op.value)); !full {
					mt.put(g.ts, op.key, op.value)
				}
			})
			if err == nil && full {
				err = fmt.Errorf("%w: it holds more than a memtable", engine.ErrCorrupt)
			}
			if err != nil {
				return nil, fmt.Errorf("log %s: %w", logName(number), err)
			}
			e.written = g.ts
		}
		logs = append(logs, c)
		if c.next == 0 {
			e.acked.Store(e.written)
			return logs, nil
		}
		number = c.next
	}
}

// nothingBehind refuses groups in logs after the last one that was replayed.
func (e *Engine) nothingBehind(names []string) error {
	last := e.content.active().log.number
	for _, name := range names {
		number, ok := numbered(name, logSuffix)
		if !ok || number <= last {
			continue
		}
		used, err := hasGroups(e.files, number)
		if err != nil {
			return err
		}
		if used {
			return fmt.Errorf("%w: log %s does not lead to %s, which goes on", engine.ErrCorrupt, logName(last), name)
		}
	}
	return nil
}

// stale returns the names of files that nothing refers to: logs, tables and manifests that
// a flush or a rewrite had not completed, or had replaced.
func (e *Engine) stale(names []string) (out []string) {
	used := map[string]bool{}
	for _, m := range e.content.memtables {
		used[logName(m.log.number)] = true
	}
	for _, r := range e.content.runs {
		for _, t := range r {
			used[tableName(t.number)] = true
		}
	}
	for _, n := range names {
		_, isLog := numbered(n, logSuffix)
		_, isTable := numbered(n, tableSuffix)
		if (isLog || isTable || n == manifestTemp) && !used[n] {
			out = append(out, n)
		}
	}
	return out
}

// tidy removes stale files. It writes the manifest again first, because the last process
// may have ended between renaming the manifest and syncing the directory. A loss of power
// could then bring back a manifest that lists a removed file. If the disk has no space for
// the manifest, the files stay.
func (e *Engine) tidy(clean bool, stale []string) error {
	if clean && len(stale) == 0 {
		return nil
	}
	begun, err := e.content.manifest().write(e.files)
	if err != nil {
		if !begun && localdir.Short(err) {
			return nil
		}
		return err
	}
	return removeAll(e.files, stale)
}
