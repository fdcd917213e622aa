"""The plans there are: layouts that keep the rules, as columns of numbers and the choices that do not broadcast."""
