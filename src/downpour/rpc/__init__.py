"""The only folder that knows Thrift: values in, values out; nothing generated leaks from here."""
