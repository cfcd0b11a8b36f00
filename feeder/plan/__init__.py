"""Which records make up batch k? Pure: no I/O, no clock, no process.

``schedule`` (step → positions) and an order (position → record: ``order``, ``blocks``,
``samplers``, ``lookup``) meet in ``batches``, which plans the rows of this process (``rows``).
``replay`` plans what only a ``reader`` can tell: orders that the user gives as iterables. ``rng``
and ``mix`` key randomness, ``spares`` draws what replaces bad records, ``interleave`` says
whose turn it is in a mix, ``state`` is a checkpoint's few integers.
"""
