"""In which order do batches come out? A pure state machine: no threads, no clock."""
