"""The figures of "Beware of Fragmentation" (USENIX ATC 2023), to be held against."""

PUBLISHED = {
    "default": {
        "random": (86.30, 87.47),
        "dotprod": (90.62, 90.85),
        "gpupacking": (91.78, 92.00),
        "bestfit": (92.86, 93.08),
        "fgd": (95.23, 95.39),
    },
    "gpushare60": {
        "random": (82.81, 83.65),
        "dotprod": (86.82, 87.11),
        "gpupacking": (87.15, 87.45),
        "bestfit": (89.06, 89.36),
        "fgd": (91.25, 91.40),
    },
    "multigpu30": {
        "random": (86.63, 89.27),
        "dotprod": (93.11, 93.28),
        "gpupacking": (94.70, 94.87),
        "bestfit": (94.57, 94.72),
        "fgd": (96.36, 96.46),
    },
    "cpu200": {
        "random": (83.03, 83.77),
        "dotprod": (87.45, 87.70),
        "gpupacking": (89.98, 90.22),
        "bestfit": (92.15, 92.40),
        "fgd": (94.82, 95.05),
    },
}
"""Allocated share in percent, by list and policy: at a load of 100, and of 130."""
