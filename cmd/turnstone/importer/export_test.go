package importer

// KeepSmallTails lets Tails keep files of any size.
func KeepSmallTails() { minTail = 0 }
