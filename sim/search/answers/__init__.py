"""Questions to a search: why not another plan, what each value costs, the rules of thumb, a changed machine."""
