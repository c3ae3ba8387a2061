"""A cloud on this computer: machines that boot, are preempted and disappear, for free."""
