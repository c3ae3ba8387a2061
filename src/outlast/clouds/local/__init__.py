"""The cloud inside your own computer: machines that boot, are preempted and vanish, for free."""
