"""A Beowulf in a box: hosts joined by limited links, with limited disks, on one machine.

Hosts are network namespaces, links are veth pairs behind a token bucket (``tbf``), disks are ext4
on loop devices throttled by the ``blkio`` control group. All of it needs root; `why_not` names the
missing tools. Every object carries the number of the process that created it, so that `clean` finds
the remains of a killed one.
"""

from benchmarks.testbed.bed import Testbed, clean, why_not
from benchmarks.testbed.disks import Disk
from benchmarks.testbed.hosts import Host

__all__ = ["Disk", "Host", "Testbed", "clean", "why_not"]
