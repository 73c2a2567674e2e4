"""``gpusharectl make-room``: move pods so that one card has room."""
