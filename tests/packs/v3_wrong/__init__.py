def comfy_entrypoint():
    return "no extension"
