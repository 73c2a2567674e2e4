"""All dashboards."""

from monitoring.boards.board import Board
from monitoring.boards.card import CARD_BOARD
from monitoring.boards.cluster import CLUSTER_BOARD
from monitoring.boards.node import NODE_BOARD
from monitoring.boards.pod import POD_BOARD

__all__ = ["BOARDS", "Board"]

BOARDS = (CLUSTER_BOARD, NODE_BOARD, CARD_BOARD, POD_BOARD)
"""From the cluster to the pod; each has links to the others."""
