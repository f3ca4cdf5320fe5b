raise RuntimeError("this script fails")
