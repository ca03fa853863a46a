"""`python -m tandem.simulator` runs seeds and says whether every promise held."""

import sys

from tandem.simulator.simulate import main

if __name__ == "__main__":
    sys.exit(main())
