_warnings = []


def get_logs():
    return []


def on_flush(callback):
    return None


def log_startup_warning(msg):
    _warnings.append(msg)
