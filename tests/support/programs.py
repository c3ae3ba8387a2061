"""Programs that more than one kind of test runs on machines."""

# Saves, and waits for the end of its machine; a resumed attempt finishes at once.
WAITS = """
import os, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "state")
resumed = os.path.exists(path)
open(path, "w").write("saved")
while not resumed:
    time.sleep(0.2)
"""
