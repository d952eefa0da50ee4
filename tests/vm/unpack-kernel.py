"""Unpack the ELF in a bzImage to FILE.elf: booted through PVH, it spares the guest the seconds that takes."""

import lzma
import sys
from pathlib import Path

image = Path(sys.argv[1])
data = image.read_bytes()
start = -1
while (start := data.find(b"\xfd7zXZ\x00", start + 1)) >= 0:
    try:
        kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data[start:])
    except lzma.LZMAError:
        continue
    if kernel.startswith(b"\x7fELF"):
        image.with_suffix(".elf").write_bytes(kernel)
        sys.exit(0)
sys.exit("the kernel is not packed with xz; its image is booted as it is")
