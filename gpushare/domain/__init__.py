"""Placing pods on cards, as pure functions over frozen values.

The rule of this floor: no clock, no environment, no network, no log. What a function
here needs, it is given; what it decides, it returns. ``tests/test_architecture.py``
holds the floor to it, and because of it ``why`` and ``simulate`` can ask the very
functions that decide in production.

Glossary:

card
    One physical GPU.
open card
    One that is healthy and that no operator has cordoned: it may get something new.
core
    One hundredth of a card's compute.
unit
    256 MiB of one card's memory. A card has the floor of its own memory.
claim
    What must be found on one card: all of a pod's containers, or each container alone
    when the pod says *apart*. 100 cores or more is that many whole cards.
request
    A pod's claims.
selector
    The cards that a pod may have, by lists of models and of UUIDs; the others are to it
    as if they were cordoned.
share
    What one pod holds of one card.
placement
    All shares of one pod on one node.
reservation
    A placement in the ledger that has not yet been seen back from the API server.
unplaced
    A pod that runs on a node on nobody knows which card: charged in full on every one.
nomination
    Room kept on a card for a pod whose victims are on their way out.
refusal
    Why a node cannot take a pod: a value with a fixed text, never an exception.
frontier
    The free amounts on a node's cards that no other card beats in both parts.
ledger
    All nodes with their placements, in memory, never a source of truth.
"""
