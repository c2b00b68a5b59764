package localdir

// At returns Path: this system has no path that leads to an open directory.
func (d *Dir) At() string { return d.Path }
