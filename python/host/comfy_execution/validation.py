def validate_node_input(received_type, input_type, strict=False):
    if not received_type != input_type:
        return True
    if received_type == "*" or input_type == "*":
        return True
    if not isinstance(received_type, str) or not isinstance(input_type, str):
        return False
    received = {part.strip() for part in received_type.split(",")}
    wanted = {part.strip() for part in input_type.split(",")}
    if "*" in received or "*" in wanted:
        return True
    return received <= wanted if strict else bool(received & wanted)
