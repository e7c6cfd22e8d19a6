"""A page that shows runs while they go on: it reads their folders, and nothing else."""
