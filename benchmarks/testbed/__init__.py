"""A Beowulf in a box: hosts joined by limited links, with limited disks, on one machine.

Hosts are network namespaces, links are veth pairs behind a token bucket (``tbf``), disks are ext4
on loop devices throttled by the ``blkio`` control group. All of it needs root; `why_not` says what
is missing. Everything carries the number of the process that made it, so that `clean` finds what a
killed one left.
"""

from benchmarks.testbed.bed import Testbed, clean, why_not
from benchmarks.testbed.disks import Disk
from benchmarks.testbed.hosts import Host

__all__ = ["Disk", "Host", "Testbed", "clean", "why_not"]
