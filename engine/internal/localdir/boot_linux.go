package localdir

import (
	"hash/crc64"
	"os"
)

// Boot returns a number for this run of the machine, or 0 if the system does not tell.
func Boot() uint64 {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	return crc64.Checksum(id, crc64.MakeTable(crc64.ECMA))
}
