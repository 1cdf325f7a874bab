"""Files and names, on local disks and in pools, behind one interface."""
