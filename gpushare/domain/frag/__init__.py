"""The mathematics of the policy frag: numbers in, numbers out, no pods and no cards.

What a pod costs on a node is what the node's rest is then worth less to the pods that
are expected, and those are the ones seen so far. In the order in which it is reckoned:
``shapes`` (what is asked, what is free), ``prices`` (what sizes of shares are worth),
``learning`` (from pods seen to tables), ``tables`` (worth of a node, charge for what is
taken of it). Which cards a pod would take, and on which of many nodes, is known one
floor up: ``gpushare.domain.frag.costs`` and ``packer``.
"""
