"""Who builds a batch, and where?

``recipe`` is what is run: read → transform → collate, into a slot (``slots``) whose ``layout``
says where each leaf is. ``inline`` runs it in this process; ``pool`` in worker processes:
``dispatch`` says which builds what, ``crew`` starts them through a ``zygote``, ``handle`` is one of
them as seen from here, and ``worker`` is its own loop.
"""
