"""`python -m outlast.agent`: what the boot script of a machine starts."""

import sys

from outlast.agent.boot import main

sys.exit(main())
