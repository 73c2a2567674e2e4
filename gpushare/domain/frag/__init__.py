"""The policy ``frag``: place a pod where its cost for later pods is least.

The cost of a pod on a node is the value that the node's free capacity loses for the
pods that are expected. Expected are the kinds of pods seen so far. The modules build on
each other in this order: ``shapes`` (what is asked, what is free), ``prices`` (what
sizes are worth, and the tables of values), ``learner`` (from pods seen to tables),
``costs`` (of one pod on one node), ``cluster_index`` (all nodes), ``search`` (for the
best one) and ``policy``.
"""
