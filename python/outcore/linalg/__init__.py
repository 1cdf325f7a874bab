"""Dense linear algebra on arrays larger than memory.

``__init__.pyi`` lists the contents, which are imported on first use. SciPy takes several times as
long to import as all the rest, and servers and file verbs do not need it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
