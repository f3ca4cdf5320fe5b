SERVER_FEATURE_FLAGS = {"supports_preview_metadata": True}


def get_connection_feature(sockets_metadata, sid, feature_name, default=False):
    return sockets_metadata.get(sid, {}).get("feature_flags", {}).get(feature_name, default)


def supports_feature(sockets_metadata, sid, feature_name):
    return get_connection_feature(sockets_metadata, sid, feature_name, False) is True


def get_server_features():
    return dict(SERVER_FEATURE_FLAGS)
