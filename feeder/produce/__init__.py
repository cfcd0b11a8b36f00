"""Who builds a batch, and where?

The rooms, from what is asked for down to the processes::

    recipe      what a worker must know: source, transforms, collate
    builder     builds a batch by it: records → filling → columns → layout, in a slot; clock,
                ambient, bad, failures say what else there is to say of it
    streams     the runs that a process has open of a stream; stream_run reads the chunks of one:
                a lineup goes straight through its lanes, unsettled remembers what was read, a lane
                takes what is not so plain from its shards; snapshot says where to open it again
    session     what every producer offers an iterator
      inline      builds in this process          here: one batch, for a look
      threads     builds in threads
      pool        builds in worker processes      auto: which of them, measured

    pool        one thread at a time moves things on, for all iterators
    dispatch    which worker builds which chunk; ledger and jobs keep account, allot gives slots
    supervise   who is late, and how many may die (deaths)
    crew        the processes, heard through one epoll; handle is one worker, launch the zygote
    zygote      forks workers (boot starts it); worker is their loop; messages is what they say
    slots       the shared memory, and leases on it; payload brings the recipe to the workers, and
                unpacking is their end of it
"""
