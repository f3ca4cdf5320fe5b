MARK = "of the ways"
