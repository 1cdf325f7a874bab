"""Dense linear algebra on arrays larger than memory.

``__init__.pyi`` lists the contents, which are imported on first use. SciPy takes several times as
long to import as all the rest, and servers and file verbs do not need it.
"""

from typing import Any

import lazy_loader

from outcore.array.operand import ArrayOperand

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _product(left: Any, right: Any) -> Any:
    matmul = __getattr__("matmul")
    return matmul(left, right, progress=False)


ArrayOperand.product_by_blocks = staticmethod(_product)
