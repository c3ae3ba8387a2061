"""The drill: preempts a training on purpose, at the worst moments, and judges whether it survives."""
