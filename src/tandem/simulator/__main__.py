"""`python -m tandem.simulator` runs seeds and says whether every promise held."""

import sys

from tandem.simulator.many import main

if __name__ == "__main__":
    sys.exit(main())
