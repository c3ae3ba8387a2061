"""The deadline policy: wait, spot, or on demand. Pure except for `traces`; standard library only."""

from outlast.policy.decide import decide
from outlast.policy.explain import explain
from outlast.policy.view import Choice, OnDemand, PolicyView, Spot

__all__ = ["Choice", "OnDemand", "PolicyView", "Spot", "decide", "explain"]
