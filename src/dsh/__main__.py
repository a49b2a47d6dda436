"""``python -m dsh`` is the ``dsh`` command."""

from __future__ import annotations

import sys

from dsh.product.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
