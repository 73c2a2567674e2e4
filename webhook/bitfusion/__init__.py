"""Pods written for Bitfusion, translated to shares of cards. Pure."""
