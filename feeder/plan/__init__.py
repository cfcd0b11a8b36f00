"""Which records make up batch k? Pure: no I/O, no clock, no process.

``order`` and ``blocks`` (position → record) and ``schedule`` (step → positions) meet in
``batches``, which plans the rows of this process (``rows``). ``rng`` keys each record's randomness;
``state`` is a checkpoint's few integers.
"""
