__all__ = ['ttypes', 'constants', 'Manager', 'Worker']
