def merge_json_recursive(base, update):
    if isinstance(base, dict) and isinstance(update, dict):
        merged = dict(base)
        for key, value in update.items():
            merged[key] = merge_json_recursive(merged[key], value) if key in merged else value
        return merged
    if isinstance(base, list) and isinstance(update, list):
        return base + update
    return update
