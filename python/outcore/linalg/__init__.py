"""Dense linear algebra on arrays larger than memory.

What is here is listed in ``__init__.pyi``, and imported when it is first used: SciPy takes a
multiple of the time of all the rest, and servers and file verbs have no use for it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
