"""The events of `outlast sync`, for those who show them."""

from outlast.sync.events import Arrived as Arrived
from outlast.sync.events import Connected as Connected
from outlast.sync.events import ConnectionLost as ConnectionLost
from outlast.sync.events import Copied as Copied
from outlast.sync.events import Deleted as Deleted
from outlast.sync.events import FileSkipped as FileSkipped
from outlast.sync.events import Problem as Problem
from outlast.sync.events import Watching as Watching
