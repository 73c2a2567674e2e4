"""The admission webhook: defaults, denials and warnings for new pods; Bitfusion."""
