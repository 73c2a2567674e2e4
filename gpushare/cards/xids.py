"""XIDs, the numbers of faults that NVIDIA's driver reports, and whose fault each is.

Any other XID makes a card sick too. The numbers are from NVIDIA's catalogue of XIDs.
"""

PROGRAM_XIDS = (13, 31, 43, 45, 68, 109)
"""XIDs that make no card sick: a program caused them, and the card works as before.

The same that NVIDIA's own device plugin ignores (k8s-device-plugin,
``internal/rm/health.go``): 13 graphics engine exception, 31 memory page fault, 43 the
card stopped processing, 45 clean-up after an earlier fault, 68 video processor
exception, 109 context switch timeout.
"""
CARD_XIDS = (48, 63, 64, 74, 79, 94, 95, 119, 120)
"""XIDs of a card that is lost, or whose memory or link is damaged."""
