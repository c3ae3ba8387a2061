"""`python -m outlast.agent`: the program that a machine's boot script starts."""

import sys

from outlast.agent.boot import main

sys.exit(main())
